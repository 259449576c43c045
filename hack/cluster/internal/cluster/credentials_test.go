package cluster

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func newTestAuthority(t *testing.T) *authority {
	t.Helper()
	a, err := newAuthority(noon)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parse(t *testing.T, encoded []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(encoded)
	if block == nil {
		t.Fatal("no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// verify checks a certificate against the authority for one use.
func verify(t *testing.T, a *authority, c *x509.Certificate, use x509.ExtKeyUsage) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: noon, KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		t.Error(err)
	}
}

func TestServerCertificateHoldsItsNamesAndAddresses(t *testing.T) {
	a := newTestAuthority(t)
	issued, err := a.server([]string{"kubernetes.default.svc"}, []netip.Addr{netip.MustParseAddr("198.19.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, issued.certificate)
	verify(t, a, c, x509.ExtKeyUsageServerAuth)
	for _, name := range []string{"kubernetes.default.svc", "198.19.0.1"} {
		if err := c.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

func TestKubeconfigCarriesTheUser(t *testing.T) {
	a := newTestAuthority(t)
	p := testPlan()
	content, err := p.kubeconfig(a, user{name: "system:node:dev-node0", groups: []string{"system:nodes"}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), "server: https://198.18.63.1:6443\n") {
		t.Errorf("no server in\n%s", content)
	}
	found := regexp.MustCompile(`client-certificate-data: (\S+)`).FindSubmatch(content)
	if found == nil {
		t.Fatalf("no certificate in\n%s", content)
	}
	decoded, err := base64.StdEncoding.DecodeString(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, decoded)
	verify(t, a, c, x509.ExtKeyUsageClientAuth)
	if c.Subject.CommonName != "system:node:dev-node0" || !slices.Equal(c.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("issued for %s", c.Subject)
	}
}

func TestEveryNodeHasItsOwnUser(t *testing.T) {
	var nodes []string
	for _, u := range testPlan().users() {
		if strings.HasPrefix(u.name, "system:node:") {
			nodes = append(nodes, u.name)
		}
	}
	if want := []string{"system:node:dev-node0", "system:node:dev-node1"}; !slices.Equal(nodes, want) {
		t.Errorf("got %v, want %v", nodes, want)
	}
}
