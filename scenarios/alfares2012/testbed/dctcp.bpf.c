// DCTCP (RFC 8257) for kernels without CONFIG_TCP_CONG_DCTCP, as a congestion control in BPF (struct_ops).
// Build and load it, as root:
//
//   bpftool btf dump file /sys/kernel/btf/vmlinux format c > vmlinux.h
//   clang -O2 -g -target bpf -D__TARGET_ARCH_x86 -c dctcp.bpf.c -o dctcp.bpf.o
//   bpftool struct_ops register dctcp.bpf.o       # and later: bpftool struct_ops unregister name dctcp

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

#define ALPHA_MAX 1024U
#define NEEDS_ECN 0x2
#define ECN_OK 1
#define DEMAND_CWR 4

struct dctcp_state {
	__u32 delivered, delivered_ce; /* at the start of the window */
	__u32 received; /* rcv_nxt before the last packet */
	__u32 alpha; /* of 1024 */
	__u32 window_end;
	__u32 is_ce;
	__u32 cwnd_at_loss;
};

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

static struct tcp_sock *tcp(struct sock *sk) { return (struct tcp_sock *)sk; }
static struct dctcp_state *own(struct sock *sk) { return (struct dctcp_state *)((struct inet_connection_sock *)sk)->icsk_ca_priv; }

static void new_window(struct tcp_sock *tp, struct dctcp_state *s)
{
	s->window_end = tp->snd_nxt;
	s->delivered = tp->delivered;
	s->delivered_ce = tp->delivered_ce;
}

SEC("struct_ops/dctcp_init")
void BPF_PROG(dctcp_init, struct sock *sk)
{
	struct dctcp_state *s = own(sk);
	s->received = tcp(sk)->rcv_nxt;
	s->alpha = ALPHA_MAX;
	s->cwnd_at_loss = 0;
	s->is_ce = 0;
	new_window(tcp(sk), s);
}

SEC("struct_ops/dctcp_ssthresh")
__u32 BPF_PROG(dctcp_ssthresh, struct sock *sk)
{
	struct dctcp_state *s = own(sk);
	__u32 cwnd = tcp(sk)->snd_cwnd, cut = (cwnd * s->alpha) >> 11;
	s->cwnd_at_loss = cwnd;
	return cwnd - cut > 2 ? cwnd - cut : 2;
}

SEC("struct_ops/dctcp_ack")
void BPF_PROG(dctcp_ack, struct sock *sk, __u32 flags)
{
	struct tcp_sock *tp = tcp(sk);
	struct dctcp_state *s = own(sk);
	if ((__s32)(tp->snd_una - s->window_end) < 0)
		return;
	__u32 delivered = tp->delivered - s->delivered, marked = tp->delivered_ce - s->delivered_ce, alpha = s->alpha;
	/* alpha = (1 - g) alpha + g F, with g = 1/16 */
	__u32 less = alpha >> 4;
	alpha -= less ? less : (alpha ? 1 : 0);
	if (marked && delivered) {
		alpha += (marked << 6) / delivered;
		if (alpha > ALPHA_MAX)
			alpha = ALPHA_MAX;
	}
	s->alpha = alpha;
	new_window(tp, s);
}

/* A loss halves the window, as with other congestion controls (RFC 8257, 3.5). */
static void react_to_loss(struct sock *sk)
{
	__u32 cwnd = tcp(sk)->snd_cwnd;
	own(sk)->cwnd_at_loss = cwnd;
	tcp(sk)->snd_ssthresh = cwnd / 2 > 2 ? cwnd / 2 : 2;
}

SEC("struct_ops/dctcp_set_state")
void BPF_PROG(dctcp_set_state, struct sock *sk, __u8 new_state)
{
	if (new_state == TCP_CA_Recovery)
		react_to_loss(sk);
}

SEC("struct_ops/dctcp_event")
void BPF_PROG(dctcp_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = tcp(sk);
	struct dctcp_state *s = own(sk);
	if (event == CA_EVENT_LOSS) {
		react_to_loss(sk);
	} else if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE) {
		__u32 is_ce = event == CA_EVENT_ECN_IS_CE;
		if (s->is_ce != is_ce) {
			/* The packets so far are acknowledged with their mark. */
			bpf_tcp_send_ack(tp, s->received);
			s->is_ce = is_ce;
		}
		s->received = tp->rcv_nxt;
		if (is_ce)
			tp->ecn_flags |= DEMAND_CWR;
		else
			tp->ecn_flags &= ~DEMAND_CWR;
	}
}

SEC("struct_ops/dctcp_undo")
__u32 BPF_PROG(dctcp_undo, struct sock *sk)
{
	__u32 cwnd = tcp(sk)->snd_cwnd, before = own(sk)->cwnd_at_loss;
	return cwnd > before ? cwnd : before;
}

SEC("struct_ops/dctcp_avoid")
void BPF_PROG(dctcp_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC(".struct_ops")
struct tcp_congestion_ops dctcp = {
	.init = (void *)dctcp_init,
	.set_state = (void *)dctcp_set_state,
	.in_ack_event = (void *)dctcp_ack,
	.cwnd_event = (void *)dctcp_event,
	.ssthresh = (void *)dctcp_ssthresh,
	.cong_avoid = (void *)dctcp_avoid,
	.undo_cwnd = (void *)dctcp_undo,
	.flags = NEEDS_ECN,
	.name = "dctcp",
};
