"""Nouns shared by every stage; standard library only."""
