{{- define "lapse.name" -}}
{{- if contains "lapse" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-lapse" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lapse.selector" -}}
app.kubernetes.io/name: lapse
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lapse.labels" -}}
{{ include "lapse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lapse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The Secret with what Kafka asks for; empty = there is none. */ -}}
{{- define "lapse.kafkaSecret" -}}
{{- if .Values.kafka.existingSecret }}{{ .Values.kafka.existingSecret }}
{{- else if or .Values.kafka.password .Values.kafka.clientProperties }}{{ include "lapse.name" . }}-kafka{{ end }}
{{- end }}
