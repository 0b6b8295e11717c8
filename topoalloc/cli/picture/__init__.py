"""A machine as something to look at: tree, matrix and picture. Pure: a Machine in, text out."""
