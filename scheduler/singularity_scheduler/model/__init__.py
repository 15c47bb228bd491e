"""What is declared once: the verbs of a session and the fields that people give it. Plain data.

Everything that shows or reads them is made of these tables. Nothing here imports anything of ours.
"""
