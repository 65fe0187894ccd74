"""A program in place of a training: the same constants give the same score, at once."""

LEFT = 4.0  # best at 1
RIGHT = 0.5  # best at 2
KIND = "plain"  # "good" is better, "bad" is no program

if KIND == "bad":
    raise SystemExit("this kind does not run")
print("score:", (LEFT - 1) ** 2 + (RIGHT - 2) ** 2 - (KIND == "good"))
