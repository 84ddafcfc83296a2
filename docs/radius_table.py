"""The table of `docs/how-to/choose-a-set.md`: how likely a KL ball lets an event become."""

import numpy as np

import holdfast as hf

RADII = (0.01, 0.1, 1.0)

print("| nominal probability | " + " | ".join(f"R = {radius:g}" for radius in RADII) + " |")
print("|---" * (len(RADII) + 1) + "|")
for p in (0.01, 0.1, 0.5):
    row = np.array([[p, 1 - p]])
    # The worst response to a reward of −1 on the event is to make it as likely as can be.
    likely = [hf.KL(radius).worst_response(row, np.array([[-1.0, 0.0]]))[0, 0] for radius in RADII]
    print(f"| {p:g} | " + " | ".join(f"{q:.3f}" for q in likely) + " |")
