"""Alerts sent to other machines: to a webhook, or with apprise to phones, chats and e-mail."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.notifications"

FEATURE = Feature(
    name="notifications",
    plugins={
        "temper.alert_sinks": {
            "webhook": f"{_HERE}.webhook:WebhookAlerts",
            "apprise": f"{_HERE}.apprise_alerts:AppriseAlerts",
        }
    },
)
