"""`role_maker`, at its place in PaddlePaddle Fleet."""
