from google.colab import _state


def serve_kernel_port_as_iframe(
    port, path="/", width="100%", height="400", cache_in_notebook=False
):
    _state.note("serve_kernel_port_as_iframe", port=port, path=path, height=height)


def enable_custom_widget_manager(version="5.0.0a"):
    if version != "5.0.0a":
        raise ValueError(f"Unknown widgets version: {version}")
