class Error(Exception):
    """Base class for all Colab errors."""


class AuthorizationError(Error):
    """Authorization-related failures."""


class RuntimeManagementError(Error):
    """Runtime-management-related failures."""
