"""The fluid model of DCQCN where it stands still (Zhu et al. 2015, section 5): marking probability and queue.

Prints a line for each number of flows: the probability, the queue in KB, and the queue by the approximation for few
marks (Zhu et al. 2016, 3.1): p^3 = R_AI N^2 / (tau' C^2) (1 / B + N / (T C))^2.
"""

from __future__ import annotations

import argparse

FRAME_BITS = 8 * 1106  # a packet of 1,024 B with all headers, preamble and gap
LINK = 40e9 / FRAME_BITS  # C, packets a second
CNP_GAP, ALPHA_TIME, RATE_TIME = 50e-6, 55e-6, 55e-6  # tau, tau', T, seconds
BYTES = 10e6 * 8 / FRAME_BITS  # B, packets
FAST_RECOVERY = 5  # F
K_MIN = 5.0  # KB


def growth(p: float, rate: float, step: float) -> float:
    """Growth of the current rate at marking probability `p`, with the alpha and the target rate that stand still there.

    Rates and the step of additive increase are packets a second.
    """

    def marked(packets: float) -> float:
        return 1 - (1 - p) ** packets

    byte, time = (1 - p) ** -BYTES - 1, (1 - p) ** (-RATE_TIME * rate) - 1
    raised = (1 - p) ** (FAST_RECOVERY * BYTES) / byte + (1 - p) ** (FAST_RECOVERY * RATE_TIME * rate) / time
    above = step * rate * p * raised / (marked(CNP_GAP * rate) / CNP_GAP)
    falls = rate * marked(ALPHA_TIME * rate) / (2 * CNP_GAP) * marked(CNP_GAP * rate)
    return above / 2 * rate * p * (1 / byte + 1 / time) - falls


def probability(flows: int, step: float) -> float:
    """The marking probability at which `flows` flows share the link and stand still."""
    low, high = 1e-9, 0.5
    for _ in range(200):
        middle = (low * high) ** 0.5
        if growth(middle, LINK / flows, step) > 0:
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="The fixed point of DCQCN's fluid model.")
    parser.add_argument("--ai-rate", type=float, default=40.0, help="R_AI in Mb/s")
    parser.add_argument("--k-max", type=float, default=200.0, help="K_max in KB")
    parser.add_argument("--p-max", type=float, default=0.01, help="the probability just below K_max")
    args = parser.parse_args()
    step = args.ai_rate * 1e6 / FRAME_BITS

    def queue(p: float) -> float:
        return K_MIN + (args.k_max - K_MIN) * p / args.p_max if p < args.p_max else args.k_max

    print("flows  probability  queue KB  approximation KB")
    for flows in (2, 4, 8, 16):
        p = probability(flows, step)
        few = step * flows**2 / (ALPHA_TIME * LINK**2) * (1 / BYTES + flows / (RATE_TIME * LINK)) ** 2
        print(f"{flows:5}  {p:11.5f}  {queue(p):8.1f}  {queue(few ** (1 / 3)):16.1f}")


if __name__ == "__main__":
    main()
