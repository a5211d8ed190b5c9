"""What is optimised: advantages, KL estimators, losses and their aggregation, as pure functions.

Every function computes in the dtype it is given (float64 makes it a referee) and mirrors the
framework its docstring names, odd values on degenerate input included: NaN stays NaN.
`response_mask` is bool or 0/1 of any dtype, 1 where a token counts.
"""
