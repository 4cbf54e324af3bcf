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
