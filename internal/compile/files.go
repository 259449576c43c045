package compile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// ErrFile tells that a policy file can't be read as one.
var ErrFile = errors.New("invalid policy file")

var errFetch = errors.New("uri has no meaning in a file")

// File is a YAML file of several documents.
type File struct {
	Name string
	Data []byte
}

// Files is what policy files hold.
type Files struct {
	Policies   []*v1alpha1.RateLimitPolicy
	Secrets    map[string]*corev1.Secret
	ConfigMaps map[string]*corev1.ConfigMap
	// Ignored lists what has no meaning outside a cluster, such as targetRefs.
	Ignored []string
}

// ReadFiles reads policies, and the Secrets and ConfigMaps that they refer to, as `kubectl apply` would take them. An
// unknown field, an unknown kind and a name that is there twice are errors, which say in which document of which file.
func ReadFiles(files []File) (*Files, error) {
	out := &Files{Secrets: map[string]*corev1.Secret{}, ConfigMaps: map[string]*corev1.ConfigMap{}}
	for _, f := range files {
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(f.Data)))
		for n := 1; ; n++ {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = out.read(document)
			}
			if err != nil {
				return nil, fmt.Errorf("%w: %s, document %d: %s", ErrFile, f.Name, n, oneLine(err))
			}
		}
	}
	if len(out.Policies) == 0 {
		return nil, fmt.Errorf("%w: no RateLimitPolicy", ErrFile)
	}
	return out, nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (f *Files) read(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case " ":
		if len(bytes.TrimSpace(withoutComments(document))) == 0 {
			return nil
		}
		return errors.New("apiVersion and kind are missing")
	case v1alpha1.GroupVersion.String() + " RateLimitPolicy":
		return f.policy(document)
	case v1alpha1.GroupVersion.String() + " RateLimitStore":
		f.Ignored = append(f.Ignored, "RateLimitStore (the flag --store names the store)")
		return nil
	case "v1 Secret":
		return addObject(document, &corev1.Secret{}, f.Secrets)
	case "v1 ConfigMap":
		return addObject(document, &corev1.ConfigMap{}, f.ConfigMaps)
	}
	return fmt.Errorf("%s %s is not taken: give a RateLimitPolicy (%s), a Secret or a ConfigMap", kind.APIVersion, kind.Kind, v1alpha1.GroupVersion)
}

func withoutComments(document []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(document) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) && !bytes.Equal(bytes.TrimSpace(line), []byte("---")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// decode reads a document as the API server does: a name that YAML takes for a number or a truth value (123, off) is an
// error, not another name, and so is an unknown field and one that is there twice.
func decode(document []byte, into any) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	strict, err := json.UnmarshalStrict(text, into)
	return errors.Join(append(strict, err)...)
}

func (f *Files) policy(document []byte) error {
	p := &v1alpha1.RateLimitPolicy{}
	if err := decode(document, p); err != nil {
		return err
	}
	if p.Name == "" {
		return errors.New("metadata.name is missing")
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Generation = max(1, p.Generation)
	name := Name(p.Namespace, p.Name)
	for _, other := range f.Policies {
		if Name(other.Namespace, other.Name) == name {
			return fmt.Errorf("RateLimitPolicy %s is there twice", name)
		}
	}
	for field, set := range map[string]bool{
		"targetRefs": len(p.Spec.TargetRefs) > 0, "selector": p.Spec.Selector != nil, "storeRef": p.Spec.StoreRef != nil,
	} {
		if set {
			f.Ignored = append(f.Ignored, "spec."+field+" of "+name)
		}
	}
	f.Policies = append(f.Policies, p)
	return nil
}

func addObject[T metav1.Object](document []byte, object T, to map[string]T) error {
	if err := decode(document, object); err != nil {
		return err
	}
	if object.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	name := Name(object.GetNamespace(), object.GetName())
	if _, twice := to[name]; twice {
		return fmt.Errorf("%s is there twice", name)
	}
	to[name] = object
	return nil
}

// Inputs compiles the policies and looks up what they refer to; each policy uses the named store unless its mode is Local.
func (f *Files) Inputs(store string) (Inputs, error) {
	in := Inputs{APIKeys: map[string][]*pushv1.APIKey{}, KeySets: map[string][]*pushv1.KeySet{}}
	for _, p := range f.Policies {
		compiled, err := Policy(p)
		if err != nil {
			return Inputs{}, err
		}
		if compiled.GetMode() != pushv1.Policy_MODE_LOCAL {
			compiled.Store = store
		}
		in.Policies = append(in.Policies, compiled)
		if err := f.credentials(p, &in); err != nil {
			return Inputs{}, fmt.Errorf("policy %s: %w", Name(p.Namespace, p.Name), err)
		}
	}
	return in, nil
}

func (f *Files) credentials(p *v1alpha1.RateLimitPolicy, in *Inputs) error {
	if p.Spec.Identity == nil {
		return nil
	}
	name := Name(p.Namespace, p.Name)
	for i := range p.Spec.Identity.JWT {
		j := &p.Spec.Identity.JWT[i]
		data, err := f.jwks(p.Namespace, &j.JWKS)
		if err != nil {
			return fmt.Errorf("spec.identity.jwt[%d].jwks: %w", i, err)
		}
		set, err := KeySet(name, j.Issuer, data)
		if err != nil {
			return fmt.Errorf("spec.identity.jwt[%d].jwks: %w", i, err)
		}
		in.KeySets[name] = append(in.KeySets[name], set)
	}
	if p.Spec.Identity.APIKeys == nil {
		return nil
	}
	keys, err := f.apiKeys(p.Namespace, p.Spec.Identity.APIKeys.SecretSelector)
	in.APIKeys[name] = keys
	return err
}

func (f *Files) jwks(namespace string, j *v1alpha1.JWKS) ([]byte, error) {
	switch {
	case j.SecretRef != nil:
		s, found := f.Secrets[Name(namespace, j.SecretRef.Name)]
		if !found || s.Labels[v1alpha1.LabelUse] != v1alpha1.UseJWKS {
			return nil, fmt.Errorf("%w: Secret %s labelled %s: %s", ErrReference, j.SecretRef.Name, v1alpha1.LabelUse, v1alpha1.UseJWKS)
		}
		data, found := SecretData(s)[j.SecretRef.Key]
		if !found {
			return nil, fmt.Errorf("%w: entry %s of Secret %s", ErrReference, j.SecretRef.Key, j.SecretRef.Name)
		}
		return data, nil
	case j.ConfigMapRef != nil:
		m, found := f.ConfigMaps[Name(namespace, j.ConfigMapRef.Name)]
		if !found {
			return nil, fmt.Errorf("%w: ConfigMap %s", ErrReference, j.ConfigMapRef.Name)
		}
		data, found := m.Data[j.ConfigMapRef.Key]
		if !found {
			return nil, fmt.Errorf("%w: entry %s of ConfigMap %s", ErrReference, j.ConfigMapRef.Key, j.ConfigMapRef.Name)
		}
		return []byte(data), nil
	default:
		return nil, fmt.Errorf("%w: a key set is fetched only by the operator; put it into a ConfigMap or Secret beside the policy", errFetch)
	}
}

func (f *Files) apiKeys(namespace string, s *metav1.LabelSelector) ([]*pushv1.APIKey, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("secretSelector: %w", err)
	}
	var keys []*pushv1.APIKey
	for _, name := range sortedKeys(f.Secrets) {
		secret := f.Secrets[name]
		if secret.Namespace != namespace || secret.Labels[v1alpha1.LabelUse] != v1alpha1.UseAPIKeys || !selector.Matches(labels.Set(secret.Labels)) {
			continue
		}
		whole := secret.DeepCopy()
		whole.Data = SecretData(secret)
		read, err := APIKeys(whole)
		if err != nil {
			return nil, err
		}
		keys = append(keys, read...)
	}
	return keys, nil
}

// SecretData is data and stringData as the API server merges them.
func SecretData(s *corev1.Secret) map[string][]byte {
	data := map[string][]byte{}
	maps.Copy(data, s.Data)
	for k, v := range s.StringData {
		data[k] = []byte(v)
	}
	return data
}
