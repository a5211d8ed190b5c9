"""Do both models answer benchmarks equally well, given how few questions there are?"""
