"""What a chosen plan is asked: its rules, crossovers, sensitivities, comparison, other engines' flags."""
