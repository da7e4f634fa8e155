from google.colab import errors


class MessageError(errors.Error):
    """Thrown on error response from frontend."""
