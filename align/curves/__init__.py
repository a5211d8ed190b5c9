"""Metric curves of two runs: pair → smooth → measure → judge → accept. No file is read here."""
