"""The fluid model of DCQCN where it stands still (Zhu et al. 2015, section 5): queue and marking probability for a number of flows.

Prints a line for each number of flows: the probability, the queue in KB, and the queue by the approximation for few marks
(Zhu et al. 2016, 3.1): p^3 = R_AI N^2 / (tau' C^2) (1 / B + N / (T C))^2.
"""

FRAME_BITS = 8 * 1106  # a packet of 1,024 B with all headers, preamble and gap
LINK = 40e9 / FRAME_BITS  # C, packets a second
CNP_GAP, ALPHA_TIME, RATE_TIME = 50e-6, 55e-6, 55e-6  # tau, tau', T, seconds
BYTES = 10e6 * 8 / FRAME_BITS  # B, packets
STEP = 40e6 / FRAME_BITS  # R_AI, packets a second
FAST_RECOVERY = 5  # F
K_MIN, K_MAX, P_MAX = 5.0, 200.0, 0.01  # KB, KB, probability


def growth(p: float, rate: float) -> float:
    """Growth of the current rate at a marking probability, with the alpha and the target rate at which these stand still."""

    def marked(packets: float) -> float:
        return 1 - (1 - p) ** packets

    byte, time = (1 - p) ** -BYTES - 1, (1 - p) ** (-RATE_TIME * rate) - 1
    raised = (1 - p) ** (FAST_RECOVERY * BYTES) / byte + (1 - p) ** (FAST_RECOVERY * RATE_TIME * rate) / time
    above = STEP * rate * p * raised / (marked(CNP_GAP * rate) / CNP_GAP)
    falls = rate * marked(ALPHA_TIME * rate) / (2 * CNP_GAP) * marked(CNP_GAP * rate)
    return above / 2 * rate * p * (1 / byte + 1 / time) - falls


def probability(flows: int) -> float:
    """The marking probability at which `flows` flows share the link and stand still."""
    low, high = 1e-9, 0.5
    for _ in range(200):
        middle = (low * high) ** 0.5
        if growth(middle, LINK / flows) > 0:
            low = middle
        else:
            high = middle
    return low


def queue(p: float) -> float:
    """The queue, in KB, at which packets are marked with probability `p`."""
    return K_MIN + (K_MAX - K_MIN) * p / P_MAX if p < P_MAX else K_MAX


def main() -> None:
    print("flows  probability  queue KB  approximation KB")
    for flows in (2, 4, 8, 16):
        p = probability(flows)
        few = STEP * flows**2 / (ALPHA_TIME * LINK**2) * (1 / BYTES + flows / (RATE_TIME * LINK)) ** 2
        print(f"{flows:5}  {p:11.5f}  {queue(p):8.1f}  {queue(few ** (1 / 3)):16.1f}")


if __name__ == "__main__":
    main()
