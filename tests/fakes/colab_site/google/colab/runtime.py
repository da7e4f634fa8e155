from google.colab import _state, errors


def unassign():
    _state.note("unassign")
    behaviour = _state.behaviour("unassign")
    if behaviour == "no_service":
        raise errors.RuntimeManagementError("Unable to find the runtime management service.")
    if behaviour == "refused":
        raise errors.RuntimeManagementError("Unable to request VM unassignment.")
    if behaviour == "no_network":
        raise ConnectionRefusedError(111, "Connection refused")
