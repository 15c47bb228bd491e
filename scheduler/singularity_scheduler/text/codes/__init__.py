"""The sentence of each code: one function for each, with the arguments of the code. Pure."""
