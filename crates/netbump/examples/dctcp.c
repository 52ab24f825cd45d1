/* DCTCP's marking (Alizadeh et al. 2010): cc -shared -fPIC -O2 -I../include -o dctcp.so dctcp.c */

#include <netbump.h>
#include <stdlib.h>

NETBUMP_PROGRAM

/* The threshold K: 20 packets of 1,518 bytes, or the first argument in bytes. */
static uint64_t threshold = 20 * 1518;

int netbump_open(int argc, const char *const *argv)
{
    if (argc == 1)
        threshold = strtoull(argv[0], NULL, 10);
    return argc > 1;
}

int netbump_process(Packet *p, vQueue *vq)
{
    if (vq->tokens > threshold)
        netbump_mark(p);
    return NETBUMP_FORWARD;
}
