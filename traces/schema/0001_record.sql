-- The record, version 1. Times are UTC. Texts that are long or repeat live once in `text`, named by their SHA-256.

CREATE TABLE text (
    hash    VARCHAR PRIMARY KEY,
    content VARCHAR NOT NULL
);

-- Runs that belong together: one call of `run`, `calibrate`, `evolve` or `demo`.
CREATE TABLE study (
    id       VARCHAR PRIMARY KEY,
    command  VARCHAR NOT NULL,
    task     VARCHAR NOT NULL,          -- the task file as it was given
    config   JSON NOT NULL,             -- every choice that `resume` needs
    seed     BIGINT NOT NULL,
    status   VARCHAR NOT NULL,          -- running, done, stopped, failed
    machine  JSON,                      -- cores, GPU, versions
    tier     VARCHAR,                   -- confinement in force: bubblewrap, none
    noise    DOUBLE,                    -- noise floor: sd of the metric of the unchanged surface over seeds
    noise_n  INTEGER,                   -- from how many seeds
    created  TIMESTAMP NOT NULL,
    finished TIMESTAMP
);

-- An inner loop of N experiments under one strategy, or a series of measurements.
CREATE TABLE run (
    id          VARCHAR PRIMARY KEY,
    study       VARCHAR NOT NULL,
    kind        VARCHAR NOT NULL,       -- search, calibrate, confirm; strategies: a repository without experiments
    arm         VARCHAR,                -- level1, incumbent, candidate, ...
    strategy    VARCHAR,                -- strategy.hash; NULL for measurements
    forked_from VARCHAR,                -- run whose first `forked_at` experiments are this run's beginning
    forked_at   INTEGER,
    seed        BIGINT NOT NULL,
    experiments INTEGER NOT NULL,       -- how many it is to have, the inherited ones counted in
    status      VARCHAR NOT NULL,       -- running, done, stopped, failed
    task        VARCHAR NOT NULL,       -- task name
    metric      VARCHAR NOT NULL DEFAULT 'val_bpb',
    direction   VARCHAR NOT NULL DEFAULT 'minimize',  -- of the metric: minimize, maximize
    metric_source VARCHAR NOT NULL,     -- scorer; stdout or json are self-reported
    model       VARCHAR,
    model_is_stand_in BOOLEAN,
    tier        VARCHAR NOT NULL,
    repository  VARCHAR,                -- git folder, relative to the laboratory
    hashes      JSON,                   -- of the surface, the task, the data, the scorer
    created     TIMESTAMP NOT NULL,
    finished    TIMESTAMP
);

CREATE TABLE experiment (
    run          VARCHAR NOT NULL,
    index        INTEGER NOT NULL,
    inherited    BOOLEAN NOT NULL DEFAULT FALSE,  -- copied from the run that this one forked from: not run again
    parent       INTEGER,
    step         VARCHAR NOT NULL,      -- how far it got: proposed, running, measured, decided
    status       VARCHAR,               -- baseline, keep, discard, crash, timeout, invalid, pruned, refused
    significant  BOOLEAN,               -- a keep that improves on the best by more than twice the noise floor
    seed         BIGINT,                -- of the training
    hypothesis   VARCHAR,
    change       JSON,
    constants    JSON,                  -- of the surface after the change
    moves        JSON,                  -- [{constant, direction, before, after}] against the parent
    diff         VARCHAR,               -- text.hash, unified diff against the parent
    surface      VARCHAR,               -- text.hash
    commit       VARCHAR,
    score        DOUBLE,                -- the metric on the validation split
    sealed_score DOUBLE,                -- on the sealed split: baselines and bests of confirmations only
    detail       VARCHAR,               -- why there is no score, in one line
    log          VARCHAR,               -- text.hash: the tail of what the experiment printed
    train_seconds    DOUBLE,            -- on the budget's clock
    startup_seconds  DOUBLE,            -- wall: waiting for a worker, building
    score_seconds    DOUBLE,            -- wall
    wall_seconds     DOUBLE,            -- wall: the whole trial
    training_wall_seconds DOUBLE,       -- wall: from data to the end of training
    steps        BIGINT,                -- self-reported
    tokens       BIGINT,                -- self-reported: trained on
    peak_memory  BIGINT,                -- bytes, of the worker
    device       VARCHAR,
    proposed     TIMESTAMP,
    started      TIMESTAMP,
    finished     TIMESTAMP,             -- of the trial
    decided      TIMESTAMP,
    PRIMARY KEY (run, index)
);

-- Training curves, reported by the experiment itself.
CREATE TABLE curve (
    run        VARCHAR NOT NULL,
    experiment INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    progress   DOUBLE NOT NULL,         -- share of the budget, 0 to 1
    loss       DOUBLE NOT NULL,         -- nats a token
    PRIMARY KEY (run, experiment, step)
);

CREATE TABLE model_call (
    run        VARCHAR NOT NULL,
    experiment INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,        -- within the experiment
    role       VARCHAR NOT NULL,        -- inner, outer, meta
    model      VARCHAR NOT NULL,
    request    VARCHAR NOT NULL,        -- text.hash
    completion VARCHAR,                 -- text.hash
    status     VARCHAR NOT NULL,        -- ok, refused, failed
    prompt_tokens     BIGINT,
    completion_tokens BIGINT,
    cost       DOUBLE,                  -- NULL is unknown, never 0
    seconds    DOUBLE,
    PRIMARY KEY (run, experiment, ordinal)
);

CREATE TABLE strategy (
    hash       VARCHAR PRIMARY KEY,     -- of its source
    source     VARCHAR NOT NULL,        -- text.hash
    origin     VARCHAR NOT NULL,        -- seed, catalogue, model
    mechanisms JSON NOT NULL,           -- names, [] for the seed
    commit     VARCHAR,                 -- in the study's repository of strategies
    created    TIMESTAMP NOT NULL
);

-- Every call of a strategy: what ran, how long, and what the incumbent would have done.
CREATE TABLE strategy_call (
    run        VARCHAR NOT NULL,
    experiment INTEGER NOT NULL,
    step       VARCHAR NOT NULL,        -- start, propose, accept, observe, prune
    strategy   VARCHAR NOT NULL,
    functions  JSON,                    -- qualified names of the module's functions that ran
    seconds    DOUBLE,
    answer     JSON,
    shadow     JSON,                    -- the incumbent's answer on the same history; NULL if not asked
    differs    BOOLEAN,                 -- NULL if not asked
    error      VARCHAR,
    PRIMARY KEY (run, experiment, step)
);

CREATE TABLE meta_iteration (
    study       VARCHAR NOT NULL,
    index       INTEGER NOT NULL,
    step        VARCHAR NOT NULL,       -- diagnosed, proposed, checked, tried, decided
    incumbent   VARCHAR,                -- strategy.hash
    candidate   VARCHAR,                -- strategy.hash
    frozen_run  VARCHAR,                -- the state that pairs start from
    frozen_at   INTEGER,
    digest      JSON,                   -- measures read from the record
    diagnosis   VARCHAR,
    mechanism   VARCHAR,
    rationale   VARCHAR,
    checks      JSON,
    decision    VARCHAR,                -- adopt, reject, indecisive, invalid, inert
    reason      VARCHAR,
    gain        DOUBLE,                 -- mean paired difference of the confirmed metric; positive: candidate better
    low         DOUBLE,
    high        DOUBLE,
    confidence  DOUBLE,
    pairs       INTEGER,
    detectable  DOUBLE,                 -- smallest effect that this many pairs could have seen
    idle        JSON,                   -- functions of the candidate's own that never ran
    calls_differing INTEGER,            -- decisions that the incumbent would have made otherwise
    calls_compared  INTEGER,
    next_run    VARCHAR,                -- the state that the next meta-iteration starts from
    next_at     INTEGER,
    created     TIMESTAMP,
    finished    TIMESTAMP,
    PRIMARY KEY (study, index)
);

CREATE TABLE pair (
    study       VARCHAR NOT NULL,
    meta_iteration INTEGER NOT NULL,
    index       INTEGER NOT NULL,
    seed        BIGINT NOT NULL,
    incumbent_run   VARCHAR NOT NULL,
    candidate_run   VARCHAR NOT NULL,
    incumbent_scores JSON,              -- best of the run, measured again: one score a fresh seed
    candidate_scores JSON,
    difference  DOUBLE,                 -- positive: candidate better
    PRIMARY KEY (study, meta_iteration, index)
);

CREATE TABLE integrity_event (
    run        VARCHAR NOT NULL,
    experiment INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    what       VARCHAR NOT NULL,        -- causal, stateless, finite, shape, protocol
    measured   DOUBLE,
    tolerance  DOUBLE,
    detail     VARCHAR,
    PRIMARY KEY (run, experiment, ordinal)
);

CREATE TABLE setting (
    name  VARCHAR PRIMARY KEY,
    value JSON NOT NULL
);
