package intercept

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// podNamespace is a network namespace with a veth to another one that stands for the world outside.
type podNamespace struct{ name string }

const (
	podIPv4 = "198.18.77.2"
	podIPv6 = "fd00:18:77::2"
)

func ip(t *testing.T, args ...string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// newPod makes the two namespaces; both go with the test.
func newPod(t *testing.T) (pod, world podNamespace) {
	t.Helper()
	suffix := strconv.Itoa(os.Getpid())
	pod, world = podNamespace{"sluice-pod-" + suffix}, podNamespace{"sluice-out-" + suffix}
	for _, namespace := range []string{pod.name, world.name} {
		ip(t, "netns", "add", namespace)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", namespace).Run() }) //nolint:noctx // the test's context has ended by then
	}
	ip(t, "link", "add", "veth-out", "netns", world.name, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
	for _, side := range []struct {
		namespace, link, v4, v6 string
	}{{pod.name, "eth0", podIPv4 + "/30", podIPv6 + "/64"}, {world.name, "veth-out", "198.18.77.1/30", "fd00:18:77::1/64"}} {
		ip(t, "-n", side.namespace, "addr", "add", side.v4, "dev", side.link)
		ip(t, "-n", side.namespace, "addr", "add", side.v6, "dev", side.link, "nodad")
		ip(t, "-n", side.namespace, "link", "set", side.link, "up")
		ip(t, "-n", side.namespace, "link", "set", "lo", "up")
	}
	return pod, world
}

// do runs the function on a thread of its own inside the namespace; the thread ends with it.
func (n podNamespace) do(t *testing.T, act func() error) {
	t.Helper()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		file, err := os.Open("/run/netns/" + n.name)
		if err != nil {
			failed <- err
			return
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		failed <- act()
	}()
	if err := <-failed; err != nil {
		t.Fatalf("in %s: %v", n.name, err)
	}
}

// listen answers every connection inside the namespace with the name and the port that the caller dialled.
func (n podNamespace) listen(t *testing.T, name string, port int) {
	t.Helper()
	var listener net.Listener
	n.do(t, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", ":"+strconv.Itoa(port))
		return err
	})
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(connection, name+" "+strconv.Itoa(originalPort(connection.(*net.TCPConn))))
			connection.Close()
		}
	}()
}

// originalPort asks the kernel for the port before the redirect; both families keep it at the same place.
func originalPort(connection *net.TCPConn) (port int) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return -1
	}
	level := unix.SOL_IP
	if connection.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
		level = unix.SOL_IPV6
	}
	_ = raw.Control(func(fd uintptr) {
		var address [unix.SizeofSockaddrInet6]byte
		size := uint32(len(address))
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, uintptr(level), unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&address[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			port = connection.LocalAddr().(*net.TCPAddr).Port
			return
		}
		port = int(binary.BigEndian.Uint16(address[2:]))
	})
	return port
}

// dial connects from the namespace and returns what the listener says.
func (n podNamespace) dial(t *testing.T, address string) string {
	t.Helper()
	var answer []byte
	n.do(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer connection.Close()
		answer, err = io.ReadAll(connection)
		return err
	})
	return string(answer)
}

func TestGuardedPortsReachTheSidecarAndNothingElseDoes(t *testing.T) {
	t.Parallel()
	pod, world := newPod(t)
	pod.listen(t, "sidecar", 15100)
	pod.listen(t, "app", 8080)
	pod.listen(t, "app", 9090)
	pod.listen(t, "app", 7070)
	pod.listen(t, "admin", 15190)

	for range 2 { // a restarted init container runs again
		pod.do(t, func() error { return exitError(Run([]string{"--ports", "8080,9090", "--to=15100"})) })
	}
	for _, c := range []struct {
		name string
		from podNamespace
		to   string
		want string
	}{
		{"a guarded port over IPv4", world, net.JoinHostPort(podIPv4, "8080"), "sidecar 8080"},
		{"a guarded port over IPv6", world, net.JoinHostPort(podIPv6, "8080"), "sidecar 8080"},
		{"the other guarded port", world, net.JoinHostPort(podIPv4, "9090"), "sidecar 9090"},
		{"a port that is not guarded", world, net.JoinHostPort(podIPv4, "7070"), "app 7070"},
		{"the admin port", world, net.JoinHostPort(podIPv4, "15190"), "admin 15190"},
		{"loopback", pod, "127.0.0.1:8080", "app 8080"},
		{"loopback over IPv6", pod, "[::1]:8080", "app 8080"},
		{"the pod's own address from inside", pod, net.JoinHostPort(podIPv4, "8080"), "app 8080"},
	} {
		if got := c.from.dial(t, c.to); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}

	pod.do(t, func() error { return exitError(Run([]string{"--ports", "7070"})) })
	if got := world.dial(t, net.JoinHostPort(podIPv4, "8080")); got != "app 8080" {
		t.Errorf("a port that is guarded no more: got %q", got)
	}
	pod.do(t, func() error {
		connection, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := connection.ListTables()
		if err == nil && len(tables) != 1 {
			t.Errorf("want one table, got %d", len(tables))
		}
		return err
	})
}

func exitError(code int) error {
	if code != 0 {
		return errors.New("exit code " + strconv.Itoa(code))
	}
	return nil
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, args string
		fails      error
		code       int
		says       string
		ports      []uint16
	}{
		{name: "ports", args: "--ports=8080,9090 --to=15100", ports: []uint16{8080, 9090}},
		{name: "no ports", args: "", code: 2, says: "sluice-init: --ports is required, such as --ports 8080,9090\n"},
		{name: "not a port", args: "--ports=http", code: 2, says: "sluice-init: --ports: \"http\" is not a port from 1 to 65535\n"},
		{name: "port 0", args: "--ports=80 --to=0", code: 2, says: "sluice-init: --to: \"0\" is not a port from 1 to 65535\n"},
		{name: "unknown flag", args: "--port=80", code: 2, says: "sluice-init: flag provided but not defined: -port\n"},
		{name: "operand", args: "--ports=80 90", code: 2, says: "sluice-init: unexpected argument \"90\"\n"},
		{name: "help", args: "--help", says: usage},
		{name: "kernel says no", args: "--ports=80", fails: unix.EPERM, code: 1, says: "sluice-init: operation not permitted\n", ports: []uint16{80}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			var redirected []uint16
			code := run(strings.Fields(c.args), &stderr, func(ports []uint16, _ uint16) error {
				redirected = ports
				return c.fails
			})
			if code != c.code || stderr.String() != c.says {
				t.Errorf("code %d, said %q; want %d, %q", code, stderr.String(), c.code, c.says)
			}
			if len(redirected) != len(c.ports) {
				t.Errorf("redirected %v, want %v", redirected, c.ports)
			}
		})
	}
}

func TestRedirectRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	if err := Redirect(nil, 15100); !errors.Is(err, ErrNoPorts) {
		t.Errorf("no ports: %v", err)
	}
	if err := Redirect([]uint16{15100}, 15100); err == nil {
		t.Error("a redirect to itself was accepted")
	}
}
