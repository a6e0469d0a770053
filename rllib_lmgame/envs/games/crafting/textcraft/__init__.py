"""TextCraft: crafting by text."""
