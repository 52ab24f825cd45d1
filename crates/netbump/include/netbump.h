/*
 * netbump.h: programs for a bump in the wire (NetBump; Al-Fares 2012, Table 5.1).
 *
 * A program is a shared library that defines some of the six calls below. A call that it does not define has the default
 * that stands beside it. The same library runs on a real cable (`sluicenet bump run FILE --app ./mine.so`) and in the
 * simulator (`app = [{ kind = "program", file = "mine.so" }]`).
 *
 *     #include <netbump.h>
 *
 *     NETBUMP_PROGRAM
 *
 *     int netbump_process(Packet *p, vQueue *vq)
 *     {
 *         if (vq->tokens > 30360)              // 20 packets of 1,518 bytes
 *             netbump_mark(p);                 // DCTCP
 *         return NETBUMP_FORWARD;
 *     }
 *
 * Build it with `cc -shared -fPIC -O2 -I crates/netbump/include -o mine.so mine.c`.
 *
 * A virtual queue is used by one thread at a time. Different queues can be used at once, so keep what you know about a queue
 * in vq->user and not in a global variable.
 */
#ifndef NETBUMP_H
#define NETBUMP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A program of another version is refused. */
#define NETBUMP_VERSION 1

/* Must stand once in every program. */
#define NETBUMP_PROGRAM const uint32_t netbump_version = NETBUMP_VERSION;
extern const uint32_t netbump_version;

/* The decision about a packet. */
enum {
    NETBUMP_FORWARD = 0, /* it goes on, changed or not */
    NETBUMP_DROP = 1,    /* it is dropped and taken out of the virtual queue */
    NETBUMP_CONSUME = 2  /* it was for the bump; it is not dropped traffic */
};

/* The queue of a packet that belongs to none: it passes unseen. */
#define NETBUMP_NO_QUEUE (-1)

/* A packet in the bump. */
typedef struct Packet {
    uint8_t *data;        /* from the destination address on; may be changed in place */
    uint32_t len;         /* bytes at data, without the check sequence; may be lowered, and raised up to capacity */
    uint32_t capacity;    /* most bytes at data */
    uint32_t wire_bytes;  /* bytes that it takes on the wire, with check sequence, preamble and gap */
    uint16_t port;        /* the port by which it came in */
    uint16_t queue;       /* its virtual queue in the bump's map; 65535 if the map has none */
    uint64_t timestamp;   /* when it came in, in picoseconds; it never goes back */
    const struct NetbumpHost *host;
    void *context;        /* the host's own */
} Packet;

/* A virtual queue: the queue at a port of the next switch. */
typedef struct vQueue {
    uint64_t tokens;      /* bytes in the queue, with the packet */
    uint64_t lastUpdate;  /* when the last packet entered it, in picoseconds */
    uint64_t rate;        /* drain rate in bit/s */
    uint64_t limit;       /* bytes at which the port's buffer is full; 0 if unknown */
    uint16_t id;          /* its number */
    void *user;           /* the program's own */
} vQueue;

/* What a bump does for a program. */
typedef struct NetbumpHost {
    /* Sends a frame of the program's own by a port. Returns 0, or -1 if the frame cannot be sent. */
    int (*send)(const Packet *p, uint16_t port, const uint8_t *frame, uint32_t len);
    /* 32 random bits; in the simulator the same ones in every run with the same seed. */
    uint32_t (*random)(const Packet *p);
    /* The leaky bucket: the default of netbump_vaqm. */
    void (*enter)(const Packet *p, vQueue *vq);
} NetbumpHost;

/*
 * The arguments behind the program's name. Returns 0, or anything else to refuse them.
 * Default: refuses any argument.
 */
int netbump_open(int argc, const char *const *argv);

/* Table 5.1: a virtual queue begins, with its drain rate in bit/s. Default: nothing. */
void netbump_init(vQueue *vq, uint64_t rate);

/* Table 5.1: the number of the packet's virtual queue, or NETBUMP_NO_QUEUE. Default: that of the map, p->queue. */
int netbump_classify(Packet *p);

/* Table 5.1: the packet enters the virtual queue. Default: Figure 5.5, lines 1 to 8. */
void netbump_vaqm(Packet *p, vQueue *vq);

/* Table 5.1: bytes in the virtual queue, for the bump's metrics. Default: vq->tokens less what has drained since. */
uint64_t netbump_estimate_qlen(const vQueue *vq, uint64_t now);

/* Table 5.1: the decision about a packet. Default: NETBUMP_FORWARD. */
int netbump_process(Packet *p, vQueue *vq);

/* Table 5.1: the port by which a packet leaves. Default: the other end of its link, p->port ^ 1. */
int netbump_forward(const Packet *p);

/* ---- helpers */

/* The IP header behind at most one 802.1Q tag, with its version in *version; NULL if there is none. */
static inline uint8_t *netbump_ip(const Packet *p, int *version)
{
    uint32_t at = 14;
    if (p->len < 34)
        return NULL;
    if (p->data[12] == 0x81 && p->data[13] == 0x00)
        at = 18;
    if (p->data[at - 2] == 0x08 && p->data[at - 1] == 0x00 && p->data[at] >> 4 == 4 && p->len >= at + 20) {
        *version = 4;
        return p->data + at;
    }
    if (p->data[at - 2] == 0x86 && p->data[at - 1] == 0xDD && p->data[at] >> 4 == 6 && p->len >= at + 40) {
        *version = 6;
        return p->data + at;
    }
    return NULL;
}

/* The ECN field: 0 not capable, 1 ECT(1), 2 ECT(0), 3 congestion experienced. */
static inline int netbump_ecn(const Packet *p)
{
    int version;
    const uint8_t *ip = netbump_ip(p, &version);
    if (ip == NULL)
        return 0;
    return version == 4 ? ip[1] & 3 : ip[1] >> 4 & 3;
}

/* Marks a packet with congestion experienced if its transport supports ECN; returns whether it does. */
static inline int netbump_mark(Packet *p)
{
    int version, ecn = netbump_ecn(p);
    uint8_t *ip = netbump_ip(p, &version);
    if (ip == NULL || ecn == 0)
        return 0;
    if (ecn == 3)
        return 1;
    if (version == 6) {
        ip[1] |= 0x30;
        return 1;
    }
    ip[1] |= 3;
    {
        /* RFC 1624, equation 3: only this word of the header has changed, by 3 - ecn. */
        uint32_t sum = (uint32_t)(ip[10] << 8 | ip[11]) ^ 0xFFFFu;
        sum += (uint32_t)(3 - ecn);
        sum = (sum & 0xFFFFu) + (sum >> 16);
        sum ^= 0xFFFFu;
        ip[10] = (uint8_t)(sum >> 8);
        ip[11] = (uint8_t)sum;
    }
    return 1;
}

/* Sends a frame of the program's own by a port. */
static inline int netbump_send(const Packet *p, uint16_t port, const uint8_t *frame, uint32_t len)
{
    return p->host->send(p, port, frame, len);
}

/* A random number from 0 to below 1. */
static inline double netbump_random(const Packet *p)
{
    return p->host->random(p) * (1.0 / 4294967296.0);
}

/* Figure 5.5, lines 1 to 8, for a program with a netbump_vaqm of its own. */
static inline void netbump_enter(const Packet *p, vQueue *vq)
{
    p->host->enter(p, vq);
}

#ifdef __cplusplus
}
#endif
#endif
