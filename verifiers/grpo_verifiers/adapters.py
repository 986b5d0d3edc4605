def adopt(name, value):
    from grpo_verifiers.function import FunctionVerifier, Settings
    return FunctionVerifier(value, name, Settings())
