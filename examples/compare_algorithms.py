"""The worst case of several algorithms on one model, side by side."""

import holdfast as hf

model = hf.environments.gambler()
print(f"{'algorithm':10} {'worst reward':>12} {'worst margin':>12}  feasible")
for algorithm in ("rcpo", "pcpo", "rvi", "lp", "crpo", "rpd"):
    options = {} if algorithm in ("rvi", "lp") else {"iterations": 40}
    found = hf.solve(model, algorithm, **options).evaluation
    print(
        f"{algorithm:10} {found.reward.worst:12.3f} {found.margins.min():12.3f}  {found.feasible}"
    )
