/* Random early detection (Al-Fares 2012, Figure 5.5): cc -shared -fPIC -O2 -I../include -o red.so red.c
 * Arguments: minimum threshold and maximum threshold in bytes, w_q, max_p. */

#include <netbump.h>
#include <stdlib.h>

NETBUMP_PROGRAM

static double min_thresh = 20 * 1518, max_thresh = 60 * 1518, weight = 0.1, max_p = 0.1;

int netbump_open(int argc, const char *const *argv)
{
    double *values[] = { &min_thresh, &max_thresh, &weight, &max_p };
    int i;
    for (i = 0; i < argc && i < 4; i++)
        *values[i] = strtod(argv[i], NULL);
    return argc > 4 || min_thresh > max_thresh;
}

void netbump_init(vQueue *vq, uint64_t rate)
{
    (void)rate;
    vq->user = calloc(1, sizeof(double));
}

int netbump_process(Packet *p, vQueue *vq)
{
    double *avg = vq->user;
    if (avg == NULL)
        return NETBUMP_FORWARD;
    *avg += weight * ((double)vq->tokens - *avg);
    if (*avg > max_thresh)
        return NETBUMP_DROP;
    if (*avg > min_thresh && netbump_random(p) < max_p * (*avg - min_thresh) / (max_thresh - min_thresh))
        return netbump_mark(p) ? NETBUMP_FORWARD : NETBUMP_DROP;
    return NETBUMP_FORWARD;
}
