"""Programs of static mode are described here: values, attributes of parameters, functions of tensors."""
