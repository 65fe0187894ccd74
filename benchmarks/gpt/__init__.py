"""The task of levels 1 to 3: a small GPT, its data, its space of constants."""
