package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// authority signs every certificate of one cluster.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	now         time.Time
}

// pair is a certificate and its key, both in PEM.
type pair struct{ certificate, key []byte }

// validity is longer than any cluster of this kind lives.
const validity = 365 * 24 * time.Hour

// newAuthority makes the cluster's own authority.
func newAuthority(now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	a := &authority{key: key, now: now}
	template := a.template(pkix.Name{CommonName: "sluice local cluster"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	a.certificate, err = x509.ParseCertificate(der)
	return a, err
}

func (a *authority) template(subject pkix.Name) *x509.Certificate {
	// The clocks of one machine agree, but the API server's may have been read first.
	const slack = time.Minute
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    a.now.Add(-slack),
		NotAfter:     a.now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// client issues a certificate by which the API server knows a user and its groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	template := a.template(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// server issues a certificate for a server with these names and addresses.
func (a *authority) server(names []string, addresses []netip.Addr) (pair, error) {
	template := a.template(pkix.Name{CommonName: names[0]})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = names
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("making a key for %s: %w", template.Subject.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("issuing a certificate for %s: %w", template.Subject.CommonName, err)
	}
	return encode(der, key)
}

// own is the authority's own pair.
func (a *authority) own() (pair, error) { return encode(a.certificate.Raw, a.key) }

func encode(certificate []byte, key *ecdsa.PrivateKey) (pair, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return pair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}, nil
}

// write saves the pair as NAME.crt and NAME.key.
func (p pair) write(dir, name string) error {
	for suffix, content := range map[string][]byte{".crt": p.certificate, ".key": p.key} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600); err != nil {
			return fmt.Errorf("saving the certificate of %s: %w", name, err)
		}
	}
	return nil
}
