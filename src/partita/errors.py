"""The error that a user's mistake raises, and that of a model whose numbers are not finite."""


class InputError(ValueError):
    """Wrong input: names the field, the value given and, in the message, what would be accepted.

    The command line prints it as one line (or one JSON object) and exits with 2.
    """

    def __init__(self, field: str, value: object, message: str):
        super().__init__(f"{field}: {value}: {message}" if value is not None else f"{field}: {message}")
        self.field = field
        self.value = value
        self.message = message


class NotFiniteError(ArithmeticError):
    """A model's numbers became infinite, or no numbers, for a prompt; the message says in which operation.

    The engine that raises it goes on to serve other requests. The command line prints it as one line (or one
    JSON object) and exits with 1.
    """

    def __init__(self, model: str, message: str):
        super().__init__(f"model: {model}: {message}")
        self.field, self.value, self.message = "model", model, message


def one_line(said: object) -> str:
    """What an error or a text says, in one line."""
    return " ".join(str(said).split())


def out_of_memory(error: BaseException) -> InputError | None:
    """What NumPy or JAX raises where there is no more memory, in one line; None for any other error."""
    if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
        return None
    import re  # not at the top: every command begins with this file, before it can be stopped in one line

    found = re.search(r"allocat\w* ([\d.]+ ?\w+)", str(error))
    size = "the request" if found is None else found[1]
    size = f"{int(size):,} bytes" if size.isdecimal() else size
    message = "more than there is; request fewer tokens or samples, or give more memory or devices"
    return InputError("memory", size, message)
