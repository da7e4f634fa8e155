"""From a row to token ids and a mask of what is learnt."""
