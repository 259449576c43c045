package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// apiClient asks the API server a question or two; everything else is kubectl's work.
type apiClient struct {
	server string
	http   *http.Client
}

// newAPIClient reads the credentials of the control plane's own client.
func newAPIClient(p Plan) (*apiClient, error) {
	authority, err := os.ReadFile(p.file("pki", "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's authority: %w", err)
	}
	certificate, err := tls.LoadX509KeyPair(p.file("pki", "kubelet-client.crt"), p.file("pki", "kubelet-client.key"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's credentials: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	return &apiClient{
		server: p.Server(),
		http: &http.Client{
			Timeout: 10 * time.Second,
			// No proxy: the API server is on this machine.
			Transport: &http.Transport{TLSClientConfig: &tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: trusted, Certificates: []tls.Certificate{certificate},
			}},
		},
	}, nil
}

// get reads a path of the API, as JSON if into is not nil.
func (a *apiClient) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// nodeList is what is wanted of the API's list of nodes.
type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
}

// unready returns the first reason why not all nodes are ready, or nil.
func (l nodeList) unready(want int) error {
	if len(l.Items) < want {
		return fmt.Errorf("%d of %d nodes have joined", len(l.Items), want)
	}
	for _, node := range l.Items {
		ready := false
		var reason string
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" {
				ready, reason = condition.Status == "True", condition.Message
			}
		}
		if !ready {
			return fmt.Errorf("node %s is not ready: %s", node.Metadata.Name, reason)
		}
	}
	return nil
}

// apply gives manifests to the API server through kubectl.
func (c *Cluster) apply(ctx context.Context, manifests []byte) error {
	p := c.state.Plan
	_, err := host.Output(ctx, bytes.NewReader(manifests), c.Catalog.Path("kubectl"),
		"--kubeconfig", p.Kubeconfig(), "--cache-dir", p.file("kubectl-cache"), "apply", "--validate=ignore", "-f", "-")
	return err
}
