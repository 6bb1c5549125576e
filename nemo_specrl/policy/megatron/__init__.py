"""The Policy protocol on Megatron-core. Importing `policy` takes seconds: Megatron does."""
