"""Rollout and reward rungs: comparable responses, and equal scores for equal responses."""
