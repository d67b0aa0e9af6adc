"""The ladder: what a training needs, asked rung by rung, the simplest first."""
