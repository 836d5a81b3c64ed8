"""One quota across many gateways: what they tell each other, and what each makes of it. DESIGN.md says why it holds."""
