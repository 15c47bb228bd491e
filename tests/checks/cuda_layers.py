"""Layers, losses, linear algebra, sparse and friends. Unchanged user code that says "cuda"; one function is one check."""

import copy

import torch
import torch.nn.functional as F
from checks.base import D, check, close
from torch import nn


@check
def conv_bn_train():
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 4, 2, 2),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    x = torch.randn(2, 3, 8, 8)
    m(x)
    m2 = copy.deepcopy(m).cuda()
    m(x).sum().backward()
    m2(x.cuda()).sum().backward()
    for a, b in zip(m.parameters(), m2.parameters()):
        close(b.grad, a.grad, 1e-4)


@check
def channels_last():
    m = nn.Conv2d(3, 4, 3).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8, device=D).to(memory_format=torch.channels_last)
    y = m(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()


@check
def conv_variants():
    for f, s in ((F.conv1d, (1, 2, 8)), (F.conv3d, (1, 2, 6, 6, 6))):
        x = torch.randn(s)
        w = torch.randn((3, 2) + (3,) * (len(s) - 2))
        close(f(x.cuda(), w.cuda(), dilation=2), f(x, w, dilation=2), 1e-4)
    with torch.backends.cudnn.flags(enabled=False):
        F.conv2d(torch.randn(1, 1, 4, 4, device=D), torch.randn(1, 1, 2, 2, device=D))


@check
def lstm():
    m = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(2, 3, 4)
    y = m(x)[0]
    m2 = copy.deepcopy(m).cuda()
    z = m2(x.cuda())[0]
    close(z, y, 1e-4)
    z.sum().backward()


@check
def gru_rnn():
    for c in (nn.GRU, nn.RNN):
        m = c(4, 5)
        x = torch.randn(2, 3, 4)
        y = m(x)[0]
        m2 = copy.deepcopy(m).cuda()
        z = m2(x.cuda())[0]
        close(z, y, 1e-4)
        z.sum().backward()


@check
def lstm_packed():
    m = nn.LSTM(4, 5).cuda()
    p = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4, device=D), [3, 2])
    o, _ = m(p)
    nn.utils.rnn.pad_packed_sequence(o)[0].sum().backward()


@check
def sdpa():
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    c = [t.cuda() for t in (q, k, v)]
    close(
        F.scaled_dot_product_attention(*c, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    mk = torch.rand(5, 5) > 0.3
    mk[:, 0] = True
    close(
        F.scaled_dot_product_attention(*c, attn_mask=mk.cuda()),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mk),
    )
    F.scaled_dot_product_attention(*c, dropout_p=0.1)


@check
def sdpa_kernel_ctx():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 1, 4, 8, device=D)
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(q, q, q)


@check
def transformer():
    m = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), 2
    )
    x = torch.randn(2, 4, 16)
    m2 = copy.deepcopy(m).cuda()
    close(m2(x.cuda()), m(x), 1e-4)
    m.eval()
    m2.eval()
    close(m2(x.cuda()), m(x), 1e-4)
    with torch.no_grad():
        close(m2(x.cuda()), m(x), 1e-4)
    nn.MultiheadAttention(16, 2).cuda()(*[torch.randn(3, 2, 16, device=D)] * 3)[0].sum().backward()


@check
def losses():
    x = torch.randn(4, 5)
    t = torch.tensor([1, 0, 4, 2])
    for f in (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, t: F.nll_loss(x.log_softmax(1), t),
        lambda x, t: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        lambda x, t: F.smooth_l1_loss(x, x * 0),
        lambda x, t: F.kl_div(x.log_softmax(1), x.softmax(1)),
        lambda x, t: F.multi_margin_loss(x, t),
        lambda x, t: F.huber_loss(x, x * 0),
        lambda x, t: F.gaussian_nll_loss(x, x * 0, x.abs() + 1),
    ):
        a = x.clone().requires_grad_()
        b = x.cuda().requires_grad_()
        f(a, t).backward()
        f(b, t.cuda()).backward()
        close(b.grad, a.grad)


@check
def ctc_loss():
    lp = torch.randn(10, 2, 5).log_softmax(2)
    tg = torch.tensor([[1, 2], [3, 4]])
    a = F.ctc_loss(lp, tg, (10, 10), (2, 2))
    b = F.ctc_loss(lp.cuda(), tg.cuda(), torch.tensor([10, 10]), torch.tensor([2, 2]))
    close(b, a)


@check
def linalg():
    a = torch.randn(4, 4) + 4 * torch.eye(4)
    b = a.cuda()
    close(torch.linalg.inv(b), torch.linalg.inv(a), 1e-4)
    close(torch.linalg.det(b), torch.linalg.det(a), 1e-3)
    close(torch.linalg.solve(b, b), torch.eye(4), 1e-4)
    torch.linalg.svd(b)
    torch.linalg.qr(b)
    torch.linalg.eigh(b @ b.t())
    torch.linalg.cholesky(b @ b.t())
    torch.linalg.norm(b)
    torch.linalg.eig(b)
    torch.linalg.lstsq(b, b)
    torch.linalg.matrix_rank(b)
    torch.cdist(b, b)
    torch.linalg.vector_norm(b)


@check
def embedding_bag():
    nn.EmbeddingBag(10, 3).cuda()(
        torch.tensor([1, 2, 4], device=D), torch.tensor([0, 2], device=D)
    ).sum().backward()


@check
def sparse():
    i = torch.tensor([[0, 1], [1, 0]])
    s = torch.sparse_coo_tensor(i, torch.ones(2), (2, 2)).cuda()
    (s @ torch.ones(2, 2, device=D)).sum()
    s.to_dense()


@check
def sparse_embedding_grad():
    e = nn.Embedding(10, 3, sparse=True).cuda()
    e(torch.tensor([1], device=D)).sum().backward()
    torch.optim.SparseAdam(e.parameters()).step()


@check
def nested():
    torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], device=D)


@check
def nested_jagged():
    n = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(3, 3)], device=D, layout=torch.jagged
    )
    (n * 2).sum()


@check
def quantized():
    torch.quantize_per_tensor(torch.randn(3, device=D), 0.1, 0, torch.qint8)


@check
def interpolate_grid():
    x = torch.randn(1, 2, 4, 4)
    close(
        F.interpolate(x.cuda(), scale_factor=2.0, mode="bilinear"),
        F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    )
    close(F.interpolate(x.cuda(), size=7), F.interpolate(x, size=7))
    F.grid_sample(x.cuda(), torch.zeros(1, 3, 3, 2, device=D))
    F.pad(x.cuda(), (1, 1, 1, 1), mode="reflect")
    F.unfold(x.cuda(), 2)
    F.pixel_shuffle(x.cuda().repeat(1, 2, 1, 1), 2)
