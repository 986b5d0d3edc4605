"""Two trees compared: is one the same answer as the other?"""
