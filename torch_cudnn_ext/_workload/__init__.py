"""What is measured: problems, from a line, a file of lines, or the calls of a network.

Nothing here knows of algorithms or times.
"""
