"""The one error a user's mistake raises."""


class InputError(ValueError):
    """Wrong input: names the field, the value given and, in the message, what would be accepted.

    The command line prints it as one line (or one JSON object) and exits with 2.
    """

    def __init__(self, field: str, value: object, message: str):
        super().__init__(f"{field}: {value}: {message}" if value is not None else f"{field}: {message}")
        self.field = field
        self.value = value
        self.message = message
