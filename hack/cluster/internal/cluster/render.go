package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"text/template"
)

//go:embed templates
var templateFiles embed.FS

var templates = template.Must(template.New("").Option("missingkey=error").ParseFS(templateFiles, "templates/*"))

// render fills in one of the embedded templates.
func render(name string, values map[string]string) ([]byte, error) {
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name, values); err != nil {
		return nil, fmt.Errorf("filling in %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// renderTo fills in one of the embedded templates and saves it.
func renderTo(file, name string, values map[string]string) error {
	content, err := render(name, values)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("saving %s: %w", name, err)
	}
	return nil
}
