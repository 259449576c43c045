package main

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The configuration that the how-to shows is the one that is tested.
func TestNginxAsksAsTheHowToSays(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/nginx.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("the how-to shows no configuration")
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	behind := application(t)
	s := start(t, policyFile(t), behind)
	dir := t.TempDir()
	server := strings.NewReplacer("listen 80;", "listen "+front+";", "127.0.0.1:9000", strings.TrimPrefix(behind, "http://"),
		"127.0.0.1:15180", strings.TrimPrefix(s.decisions, "http://")).Replace(string(found[1]))
	write(t, filepath.Join(dir, "nginx.conf"), `daemon off; master_process off; pid nginx.pid; error_log stderr;
events {}
http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
`+server+"}\n")
	nginx := exec.CommandContext(t.Context(), "nginx", "-p", dir, "-e", "stderr", "-c", "nginx.conf")
	nginx.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	nginx.Stderr = &said
	if err := nginx.Start(); err != nil {
		t.Fatalf("start nginx: %v (apt-get install nginx-light)", err)
	}
	t.Cleanup(func() {
		_ = nginx.Process.Kill()
		_ = nginx.Wait() // it was killed
		if t.Failed() {
			t.Log(said.String())
		}
	})
	eventually(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", front)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	statuses := make([]int, 0, 7)
	for range 7 {
		r := get(t, "http://"+front+"/shop?a=b")
		statuses = append(statuses, r.StatusCode)
		if limited := r.StatusCode == http.StatusTooManyRequests; limited != (r.Header.Get("Retry-After") != "") || !limited && r.Header.Get("RateLimit-Remaining") == "" {
			t.Errorf("%s %v", r.Status, r.Header)
		}
	}
	if want := []int{200, 200, 200, 200, 200, 429, 429}; !slices.Equal(statuses, want) {
		t.Errorf("statuses %v, want %v", statuses, want)
	}
	if free := get(t, "http://"+front+"/free"); free.StatusCode != http.StatusOK {
		t.Errorf("where no rule applies: %s", free.Status)
	}
}
