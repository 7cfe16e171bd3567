"""PaddlePaddle 2's names, of static mode and of Fleet."""
