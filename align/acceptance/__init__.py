"""Acceptance of a candidate under a declared policy: criteria, noise floor, certificate."""
