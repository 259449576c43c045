package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errTarget = errors.New("original destination of the connection")

// Fixed sends every connection to one port of this pod.
func Fixed(port int) Target {
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return func(net.Conn) (string, error) { return at, nil }
}

// Original asks the kernel where a redirected connection wanted to go (SO_ORIGINAL_DST of netfilter). A connection that
// was made to the listener itself has no other target: it is refused, or it would go round in a circle.
func Original(c net.Conn) (string, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return "", fmt.Errorf("%w: not TCP", errTarget)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errTarget, err)
	}
	var target netip.AddrPort
	var failed error
	err = raw.Control(func(fd uintptr) { target, failed = originalDst(int(fd)) })
	if err := errors.Join(err, failed); err != nil {
		return "", fmt.Errorf("%w: %w", errTarget, err)
	}
	if local, ok := c.LocalAddr().(*net.TCPAddr); ok && local.AddrPort().Port() == target.Port() {
		return "", fmt.Errorf("%w: it was made to the sidecar itself", errTarget)
	}
	return target.String(), nil
}

func originalDst(fd int) (netip.AddrPort, error) {
	// The kernel fills in a sockaddr_in, which fits what this call is declared to return.
	four, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err == nil {
		b := four.Multiaddr
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
	}
	six, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := (*[2]byte)(unsafe.Pointer(&six.Addr.Port)) //nolint:gosec // in network byte order, as the kernel left it
	return netip.AddrPortFrom(netip.AddrFrom16(six.Addr.Addr), uint16(port[0])<<8|uint16(port[1])), nil
}
