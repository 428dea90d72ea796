"""Mock interviews: scenarios, the conversation, its assessment and its report."""
