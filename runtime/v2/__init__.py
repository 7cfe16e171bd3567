"""PaddlePaddle v2's names."""
