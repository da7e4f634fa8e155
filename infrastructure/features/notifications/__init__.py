"""Alerts sent to other machines: to a webhook, or with apprise to phones, chats and e-mail."""
