/* The link between the two sides: UCX, by its tagged messages. See link_mpi.h for the same over MPI.
 * The side's number is the last argument; addresses are exchanged by way of whoever gives the orders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

typedef ucs_status_ptr_t link_request;

static int rank;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer;

static void fail(const char *why);
static void link_fail(void) {}

static void check(ucs_status_t status) {
    if (status != UCS_OK) fail(ucs_status_string(status));
}

static void link_open(int *argc, char ***argv) {
    *argc -= 1;
    rank = atoi((*argv)[*argc]);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t one = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                               .thread_mode = UCS_THREAD_MODE_SINGLE};
    check(ucp_init(&params, NULL, &context));
    check(ucp_worker_create(context, &one, &worker));
}

static void link_join(FILE *orders, FILE *answers) {
    ucp_address_t *ours;
    size_t len;
    check(ucp_worker_get_address(worker, &ours, &len));
    for (size_t i = 0; i < len; i++) fprintf(answers, "%02x", ((unsigned char *)ours)[i]);
    fprintf(answers, "\n");
    fflush(answers);
    ucp_worker_release_address(worker, ours);
    static char hex[1 << 16];
    static unsigned char theirs[1 << 15];
    if (!fgets(hex, sizeof hex, orders)) fail("no address of the other side");
    unsigned byte;
    for (size_t i = 0; sscanf(hex + 2 * i, "%2x", &byte) == 1; i++) theirs[i] = (unsigned char)byte;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                              .address = (const ucp_address_t *)theirs};
    check(ucp_ep_create(worker, &params, &peer));
}

/* The other side may need our help until it has all. */
static void link_close(void) {
    for (int i = 0; i < 1000; i++) ucp_worker_progress(worker);
}

static const ucp_request_param_t usual = {0};

static link_request link_nothing(void) { return NULL; }

static link_request link_post_send(const void *buf, size_t bytes, int tag) {
    link_request request = ucp_tag_send_nbx(peer, buf, bytes, (ucp_tag_t)tag, &usual);
    if (UCS_PTR_IS_ERR(request)) fail("it cannot send");
    return request;
}

static link_request link_post_receive(void *buf, size_t bytes, int tag) {
    link_request request = ucp_tag_recv_nbx(worker, buf, bytes, (ucp_tag_t)tag, (ucp_tag_t)-1, &usual);
    if (UCS_PTR_IS_ERR(request)) fail("it cannot receive");
    return request;
}

static void link_wait(link_request *request) {
    if (!*request) return;
    while (ucp_request_check_status(*request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    check(ucp_request_check_status(*request));
    ucp_request_free(*request);
    *request = NULL;
}

static void link_send(const void *buf, size_t bytes, int tag) {
    link_request request = link_post_send(buf, bytes, tag);
    link_wait(&request);
}

static void link_receive(void *buf, size_t bytes, int tag) {
    link_request request = link_post_receive(buf, bytes, tag);
    link_wait(&request);
}
