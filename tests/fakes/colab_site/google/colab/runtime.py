from google.colab import _state, errors


def unassign():
    _state.note("unassign")
    told = _state.behaviour("unassign")
    if told == "no_service":
        raise errors.RuntimeManagementError("Unable to find the runtime management service.")
    if told == "refused":
        raise errors.RuntimeManagementError("Unable to request VM unassignment.")
    if told == "no_network":
        raise ConnectionRefusedError(111, "Connection refused")
